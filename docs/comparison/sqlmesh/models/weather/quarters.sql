MODEL (name weather.quarters, kind FULL);
SELECT min(month) AS quarter, sum(days)::INT AS days, sum(rain) AS rain
FROM weather.months
GROUP BY date_trunc('quarter', month) HAVING count(*) = 3
