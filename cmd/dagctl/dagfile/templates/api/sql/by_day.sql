SELECT happened_at::DATE AS day, count(*) AS earthquakes, round(avg(magnitude), 2) AS mean, max(magnitude) AS strongest
FROM earthquakes
GROUP BY day
ORDER BY day
