"""Results: evaluated in memory or streamed to files and stores, saved, opened, traced back to their study."""
