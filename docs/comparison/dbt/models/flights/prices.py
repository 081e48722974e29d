import pandas as pd


def model(dbt, session):
    months = pd.period_range("2026-01", pd.Timestamp.now().to_period("M") - 1, freq="M")
    return pd.DataFrame({"month": months.to_timestamp(), "price": 70 + months.month})
