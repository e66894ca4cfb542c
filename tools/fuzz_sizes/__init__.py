"""The size fuzz: machines whose payloads are as large as the documented bounds allow (see README.md)."""
