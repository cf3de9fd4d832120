"""Training of the two small models that ship with interp: a GPT-2 and a BERT, on plain text, on a CPU."""
