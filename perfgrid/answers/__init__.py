"""Questions answered in one call: which design trains or serves a model on given devices."""
