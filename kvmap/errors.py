"""The one exception whose message is meant for the person at the keyboard."""


class KVMapError(Exception):
    """Something the user can mend.

    The message is one sentence that names the offending value and the way out. Commands print it
    without a traceback and exit with a non-zero status.
    """
