"""What collectives did: their bandwidth, who waited in them, how much of them compute hid."""
