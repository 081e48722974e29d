select ÿ
