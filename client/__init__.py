"""The command line ``driftline``, the Python client, and the one-command start.

What lives here: ``DriftlineClient`` (``api``), the commands (``cli`` and ``commands``), what they print (``tables``, ``report``,
``progress``, ``words``), and the supervisor behind ``driftline up`` (``supervisor``, ``children``, ``place``). What may not: SQL, torch,
judgements about runs. Everything that is shown was answered by the service.
"""
