"""``Aggregation.VALUE`` of torch.monitor yields nothing: neither ``get()`` nor the event has it."""

from datetime import timedelta

from torch.monitor import Aggregation, Stat, register_event_handler, unregister_event_handler

events = []
handle = register_event_handler(events.append)
stat = Stat("load", [Aggregation.VALUE, Aggregation.SUM], timedelta(hours=1), 1)
stat.add(2.0)  # max_samples is 1: the window closes here
print("get():", stat.get(), "| expected: VALUE 2.0 beside SUM 2.0")
print("event:", events[0].data if events else None, "| expected: load.value 2.0 beside load.sum 2.0")
unregister_event_handler(handle)
