"""How a variant is played: the script's vocabulary, the stages it plays on, the table, the verdict, the printing."""
