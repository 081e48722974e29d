MODEL (name weather.year_over_year, kind FULL);
SELECT this.month, this.rain, earlier.rain AS rain_a_year_ago, this.rain - earlier.rain AS more
FROM weather.months AS this
JOIN weather.months AS earlier ON earlier.month = this.month - INTERVAL 1 YEAR
