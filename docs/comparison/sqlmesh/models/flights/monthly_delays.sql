MODEL (
  name flights.monthly_delays,
  kind INCREMENTAL_BY_TIME_RANGE (time_column month),
  cron '@monthly'
);
SELECT month, carrier, count(*) AS flights, sum(late)::BIGINT AS late, any_value(price) AS price
FROM flights.scored JOIN flights.prices ON month = date_trunc('month', date)
WHERE date BETWEEN @start_date AND @end_date
GROUP BY month, carrier ORDER BY month, carrier
