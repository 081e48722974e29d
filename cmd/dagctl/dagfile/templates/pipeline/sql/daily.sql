-- One row per station. The input is the relation `readings`: the day's file.
SELECT station,
       min(celsius)           AS lowest,
       round(avg(celsius), 1) AS mean,
       max(celsius)           AS highest,
       count(*)               AS readings
FROM readings
GROUP BY station
ORDER BY station
