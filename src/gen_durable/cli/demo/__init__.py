"""`gen-durable demo`: a shop (`machines`) with real worker processes, one of which is killed, and checks at the end."""
