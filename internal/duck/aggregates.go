package duck

import "strings"

// aggregates are DuckDB's aggregate functions. To ask a session for them costs as much as its start; a test compares.
var aggregates = setOf(`
	any_value approx_count_distinct approx_quantile approx_top_k arbitrary arg_max arg_max_null
	arg_max_nulls_last arg_min arg_min_null arg_min_nulls_last argmax argmin array_agg avg bit_and bit_or
	bit_xor bitstring_agg bool_and bool_or corr count count_if count_star countif covar_pop covar_samp cume_dist
	dense_rank entropy favg fill first first_value fsum group_concat histogram histogram_exact kahan_sum
	kurtosis kurtosis_pop lag last last_value lead list listagg mad max max_by mean median min min_by mode
	nth_value ntile percent_rank product quantile quantile_cont quantile_disc rank rank_dense regr_avgx
	regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy reservoir_quantile
	row_number sem skewness stddev stddev_pop stddev_samp string_agg sum sum_no_overflow sumkahan var_pop
	var_samp variance`)

// aggregateMacros are DuckDB's own macros that stand for aggregate functions; a test compares.
var aggregateMacros = setOf(`geomean geometric_mean json_group_array json_group_object json_group_structure wavg
	weighted_avg`)

// isAggregate reports whether a function of this name, in lower case, combines the values of many rows.
func isAggregate(name string) bool { return aggregates[name] || aggregateMacros[name] }

func setOf(names string) map[string]bool {
	set := map[string]bool{}
	for _, name := range strings.Fields(names) {
		set[name] = true
	}
	return set
}
