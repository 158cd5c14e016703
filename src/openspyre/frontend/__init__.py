"""PyTorch's compiler -> Kernels. Importing this package loads neither Dynamo nor Inductor.

Whoever comes here first loads all of torch first: torch's autoload imports modules of this
package, and must find none of them half imported.
"""

import torch  # noqa: F401
