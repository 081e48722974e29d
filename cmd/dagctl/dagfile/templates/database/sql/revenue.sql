SELECT product, count(*) AS orders, sum(amount * price)::DECIMAL(18, 2) AS revenue
FROM orders
GROUP BY product
ORDER BY product
