"""What a training step needs whatever it is spread over: data, loss, accumulation, clipping, precision, schedule."""
