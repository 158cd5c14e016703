"""spyreccl: collectives of torch.distributed on tensors of cards.

`registration` tells torch the name; `group` is what a process group calls; `exchange` moves bytes
between ranks, `shared` through shared memory, `hosts` over gloo; `lanes` are the threads that do
it; `reductions` compute on the card; `link` says how long it takes in card time.
"""
