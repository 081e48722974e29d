SELECT ordered_on AS day, country, category, count(*) AS orders, count(shipments.order_id) AS shipped,
  sum(amount * price / per_euro)::DECIMAL(12, 2) AS euros
FROM orders
JOIN customers ON customers.id = orders.customer_id
JOIN products USING (product)
JOIN rates ON rates.day = orders.ordered_on AND rates.currency = orders.currency
LEFT JOIN (SELECT DISTINCT order_id FROM shipments) AS shipments ON shipments.order_id = orders.id
GROUP BY ALL
ORDER BY ALL
