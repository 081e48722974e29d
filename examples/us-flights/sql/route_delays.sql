-- One row per route: its flights of the day. `airports` is read twice, for either end.
SELECT
    CAST(getvariable('partition') AS DATE) AS day,
    f.origin || '-' || f.destination AS route,
    f.origin,
    o.city AS origin_city,
    f.destination,
    d.city AS destination_city,
    max(f.distance) AS distance,
    count(*) AS flights,
    count(*) FILTER (WHERE f.delay >= 15) AS delayed,
    round(100.0 * count(*) FILTER (WHERE f.delay >= 15) / count(*), 1) AS delayed_percent,
    round(avg(f.delay), 1) AS average_delay,
    round(quantile_cont(f.delay, 0.9), 1) AS p90_delay
FROM flights AS f
LEFT JOIN airports AS o ON o.iata = f.origin
LEFT JOIN airports AS d ON d.iata = f.destination
GROUP BY f.origin, o.city, f.destination, d.city
ORDER BY origin, destination
