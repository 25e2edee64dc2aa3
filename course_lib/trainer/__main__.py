"""`python -m course_lib.trainer --help` says what there is."""

import os
import sys
import traceback

from course_lib.trainer import main

if __name__ == "__main__":
    try:
        status = main()
    except SystemExit as left:  # argparse has said why
        status = left.code
    except BaseException as error:
        traceback.print_exc()
        status = 130 if isinstance(error, KeyboardInterrupt) else 1
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: threads of gloo that outlive their work have ended finished ranks with SIGABRT, which torchrun then
    # counts as a failure; and a rank that failed must not wait for the others, who wait for it.
    os._exit(status)
