-- One row per airport: its departures of the day. The inputs are relations by the names that `as` gives them;
-- getvariable('partition') is the partition being made, here a day such as 2001-01-31.
SELECT
    CAST(getvariable('partition') AS DATE) AS day,
    f.origin AS iata,
    a.name AS airport,
    a.city,
    a.state,
    count(*) AS flights,
    count(*) FILTER (WHERE f.delay >= 15) AS delayed,
    round(100.0 * count(*) FILTER (WHERE f.delay >= 15) / count(*), 1) AS delayed_percent,
    CAST(sum(f.delay) AS BIGINT) AS delay_minutes,
    round(avg(f.delay), 1) AS average_delay,
    round(quantile_cont(f.delay, 0.9), 1) AS p90_delay
FROM flights AS f
LEFT JOIN airports AS a ON a.iata = f.origin
GROUP BY f.origin, a.name, a.city, a.state
ORDER BY iata
