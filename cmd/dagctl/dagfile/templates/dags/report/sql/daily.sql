SELECT station, min(celsius) AS lowest, avg(celsius) AS mean
FROM readings
GROUP BY station
