-- One row per airport with 300 flights or more in the month: ten a day, below which one bad day decides the rank.
-- `days` has the rows of all days of the month.
WITH months AS (
    SELECT
        iata,
        airport,
        city,
        state,
        CAST(sum(flights) AS BIGINT) AS flights,
        CAST(sum(delayed) AS BIGINT) AS delayed,
        CAST(sum(delay_minutes) AS BIGINT) AS delay_minutes,
        -- Of two equally bad days the later one.
        max({'share': delayed_percent, 'day': day}).day AS worst_day
    FROM days
    GROUP BY iata, airport, city, state
    HAVING sum(flights) >= 300
)
SELECT
    getvariable('partition') AS month,
    row_number() OVER (ORDER BY delayed / flights DESC, iata) AS rank,
    iata,
    airport,
    city,
    state,
    flights,
    delayed,
    round(100.0 * delayed / flights, 1) AS delayed_percent,
    round(delay_minutes / flights, 1) AS average_delay,
    worst_day
FROM months
ORDER BY rank
