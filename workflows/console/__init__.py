"""The human side of a run: what the commands of client.py are made of. Workflow code never imports it."""
