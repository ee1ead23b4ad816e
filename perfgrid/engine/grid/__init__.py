"""The design space, the plan of its evaluation, and results on labelled axes."""
