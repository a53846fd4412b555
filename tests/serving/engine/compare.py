"""Run in a process of its own, with the server's environment: our CPU path against SGLang's own.

Prints the name of each comparison on a line, then its cases. The fixture `compared` starts it: SGLang takes
longer to import than all comparisons take.
"""

import compare_backends
import compare_configs
import compare_layers
import compare_sampler

for comparison in (compare_backends, compare_configs, compare_layers, compare_sampler):
    print(comparison.__name__)
    comparison.main()
