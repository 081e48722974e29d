-- Sums of bigint that stay bigint: sum() makes a numeric of each, which takes longer than the addition.
-- +goose Up

CREATE AGGREGATE sum_exact(BIGINT) (SFUNC = int8pl, STYPE = BIGINT, COMBINEFUNC = int8pl, PARALLEL = SAFE);
