SELECT min(month) AS quarter, sum(days)::INT AS days, sum(rain) AS rain
FROM {{ ref('weather_months') }}
GROUP BY date_trunc('quarter', month) HAVING count(*) = 3
