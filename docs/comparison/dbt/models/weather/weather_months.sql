SELECT min(date) AS month, count(*) AS days, sum(rain) AS rain, max(highest) AS highest
FROM {{ source('weather', 'daily') }}
GROUP BY date_trunc('month', date)
