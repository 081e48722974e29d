SELECT this.month, this.rain, earlier.rain AS rain_a_year_ago, this.rain - earlier.rain AS more
FROM {{ ref('weather_months') }} AS this
JOIN {{ ref('weather_months') }} AS earlier ON earlier.month = this.month - INTERVAL 1 YEAR
