CREATE MACRO net(price) AS price / 1.19;
