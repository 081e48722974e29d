from pathlib import Path

import dagster as dg
from dagster_duckdb import DuckDBResource


@dg.definitions
def defs():
    return dg.Definitions.merge(
        dg.load_from_defs_folder(path_within_project=Path(__file__).parent),
        dg.Definitions(resources={"duckdb": DuckDBResource(database="pipelines.duckdb")}),
    )
