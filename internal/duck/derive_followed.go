package duck

// set returns the names in a list.
func set(names ...string) map[string]bool {
	m := make(map[string]bool, len(names))
	for _, name := range names {
		m[name] = true
	}
	return m
}

var (
	followedOperators = []string{"OPERATOR_NOT", "OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL", "OPERATOR_COALESCE",
		"OPERATOR_NULLIF", "COMPARE_IN", "COMPARE_NOT_IN"}

	// followedAggregates return the same for the same values in any order. Sums of floating-point numbers differ in
	// their last digits from run to run anyway.
	followedAggregates = set("count", "count_star", "count_if", "sum", "min", "max", "avg", "mean", "bool_and",
		"bool_or", "bit_and", "bit_or", "bit_xor", "median")

	// followedFunctions return the same for the same arguments, at any time.
	followedFunctions = set("+", "-", "*", "/", "//", "%", "^", "**", "||", "&", "|",
		"~~", "!~~", "~~*", "!~~*", "~~~", "like_escape", "ilike_escape", "not_like_escape", "not_ilike_escape",
		"abs", "ceil", "ceiling", "floor", "round", "trunc", "sign", "sqrt", "cbrt", "exp", "ln", "log", "log10",
		"log2", "pow", "power", "mod", "fmod", "greatest", "least", "ifnull", "nullif", "isnan", "isfinite",
		"lower", "lcase", "upper", "ucase", "trim", "ltrim", "rtrim", "length", "len", "strlen", "substr", "substring",
		"left", "right", "replace", "concat", "concat_ws", "lpad", "rpad", "reverse", "repeat", "starts_with",
		"prefix", "suffix", "ends_with", "contains", "strpos", "instr", "position", "split_part", "translate",
		"ascii", "chr", "unicode", "md5", "sha256", "regexp_matches", "regexp_full_match", "regexp_replace",
		"regexp_extract", "date_trunc", "datetrunc", "date_part", "datepart", "date_diff", "datediff", "date_sub",
		"datesub", "year", "month", "day", "hour", "minute", "second", "quarter", "week", "dayofweek", "dayofyear",
		"dayofmonth", "isodow", "weekday", "weekofyear", "yearweek", "monthname", "dayname", "last_day", "epoch",
		"epoch_ms", "strftime", "strptime", "try_strptime", "make_date", "make_timestamp", "to_timestamp",
		"time_bucket", "to_years", "to_months", "to_weeks", "to_days", "to_hours", "to_minutes", "to_seconds",
		"timezone", "getvariable")
)
