MODEL (name weather.months, kind FULL);
SELECT min(date) AS month, count(*) AS days, sum(rain) AS rain, max(highest) AS highest
FROM read_csv('data/daily.csv')
GROUP BY date_trunc('month', date)
