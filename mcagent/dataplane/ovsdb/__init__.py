"""The Open_vSwitch database (OVSDB): our bridge, its host port and its tunnels."""
