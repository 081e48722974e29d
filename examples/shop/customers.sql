-- The customers, in PostgreSQL.
CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL, country text NOT NULL);

INSERT INTO customers VALUES (1, 'Café Anker', 'DE'), (2, 'Teehaus Limmat', 'CH'), (3, 'The Kettle', 'GB');
