"""The command line ``driftline``, the Python client, and the one-command start.

What lives here: ``DriftlineClient`` (``api``), the commands (``cli``, ``commands``, ``following``, ``starting``,
``tokens``), what they print (``tables``, ``report``, ``progress``, ``words``), and the supervisor behind ``driftline up``
(``service``, ``supervisor``, ``children``, ``place``, ``processes``). What may not: SQL, torch, and judgements about runs,
since everything that is shown is the service's answer.
"""
