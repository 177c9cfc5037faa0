return time(tick);  // each tick in a unit of its own: one unit does not fit a logarithmic axis
