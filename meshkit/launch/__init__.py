"""How a process learns who it is and joins the job. The only room that reads the environment."""
