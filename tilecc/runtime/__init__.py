"""Building compiled programs and calling them: arguments, threads, scratch memory."""
