"""Hostile logins beside a normal load: what do they read, change, stop or delay?"""
