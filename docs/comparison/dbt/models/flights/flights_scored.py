def model(dbt, session):
    flights = dbt.source("landed", "flights").df()
    flights["late"] = (flights["delay"] >= 15).astype(int)
    return flights[["date", "carrier", "delay", "late"]]
