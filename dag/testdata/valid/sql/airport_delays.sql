SELECT iata, avg(delay) AS delay FROM flights GROUP BY iata
