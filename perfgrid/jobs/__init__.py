"""Jobs: what configurations of frameworks state, as quantities of a study, and designs as such configurations."""
