print("udf")
