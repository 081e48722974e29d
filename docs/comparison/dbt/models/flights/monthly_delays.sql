SELECT month, carrier, count(*) AS flights, sum(late)::BIGINT AS late, any_value(price) AS price
FROM {{ ref('flights_scored') }} JOIN {{ ref('prices') }} ON month = date_trunc('month', date)
GROUP BY month, carrier ORDER BY month, carrier
