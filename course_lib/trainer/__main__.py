"""`python -m course_lib.trainer --help` says what there is."""

import contextlib
import os
import sys
import traceback

from course_lib.trainer import main
from course_lib.trainer.log import say

if __name__ == "__main__":
    try:
        status = main()
    except SystemExit as left:  # argparse has said why
        status = left.code
    except KeyboardInterrupt:
        say("Left at once, without a checkpoint.", file=sys.stderr)
        status = 130
    except BaseException:
        traceback.print_exc()
        status = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # nobody reads any more
            stream.flush()
    # Not sys.exit: threads of gloo that outlive their work have ended finished ranks with SIGABRT, which torchrun then
    # counts as a failure; and a rank that failed must not wait for the others, who wait for it.
    os._exit(status)
