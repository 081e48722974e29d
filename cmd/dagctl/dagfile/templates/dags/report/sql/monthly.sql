SELECT station, min(lowest) AS lowest, round(avg(mean), 1) AS mean
FROM days
GROUP BY station
ORDER BY station
