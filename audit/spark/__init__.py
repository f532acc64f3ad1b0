"""The audit on Spark: the plan of the job, the session, the data source."""
